"""How a rank's process ends."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn


def leave(status: int) -> NoReturn:
    """End this process with `status`, without tearing the interpreter down.

    All that must be written has to be written, and child processes ended, before. A thread of gloo may still hold the
    tensors of a collective that is over, and one that frees them while Python tears itself down aborts the process
    (pytorch/pytorch#179291): a run that succeeded would fail.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
