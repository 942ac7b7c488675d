from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("status", [0, 2])
def test_a_process_leaves_with_its_status_all_output_written_and_nothing_torn_down(status: int) -> None:
    code = (
        "import atexit, logging, sys\n"
        "from torchlayout.train.leave import leave\n"
        "atexit.register(print, 'torn down')\n"
        "logging.warning('logged')\n"
        "sys.stdout.write('printed')\n"
        f"leave({status})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "printed", "WARNING:root:logged\n")
