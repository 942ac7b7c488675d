"""Prints how long the report of a study of 1,000 runs takes, in CPU seconds; exit 1 where it is over ten.

python benchmarks/report.py [--runs 1000] [--steps 50] [--keep DIR]

The runs are files that were made up, as `torchlayout compare` leaves them: nothing is trained.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness import reports
from torchlayout.compare.report.build import write_report
from torchlayout.compare.result import collect
from torchlayout.compare.state import RunRecord, StudyState
from torchlayout.compare.study import Study
from torchlayout.records import RunDirectory

ALLOWED_SECONDS = 10.0
BASE = """
[compare]
nproc = 8
nnodes = 8
launcher = "srun"
steps = {steps}
warmup_steps = 4
[base.model]
preset = "llama-13b"
[base.data]
path = "corpus"
sequence_length = 2048
[base.batch]
global_size = 2048
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the study and its report here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = write_study(arguments.keep or Path(folder), arguments.runs, arguments.steps)
        start = time.process_time()
        content = collect(directory)
        collected = time.process_time()
        page = write_report(content, directory)
        done = time.process_time()
        ran = sum(layout["status"] == "ok" for layout in content["layouts"])
        print(f"{arguments.runs} runs of {arguments.steps} steps, {ran} of them ok")
        print(f"read and judged    {collected - start:6.2f} s of CPU")
        print(f"written and drawn  {done - collected:6.2f} s of CPU")
        print(f"together           {done - start:6.2f} s of CPU; allowed: {ALLOWED_SECONDS:.0f}")
        print(f"{page.name}        {page.stat().st_size / 1e6:6.2f} MB")
    return int(done - start > ALLOWED_SECONDS)


def write_study(folder: Path, runs: int, steps: int) -> Path:
    """The files of a study whose layouts ran once each, one in ten of them out of memory."""
    made_up = reports.large(runs, steps)["layouts"]
    file = folder / "large.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    labels = ", ".join(f'"{layout["label"]}"' for layout in made_up)
    file.write_text(f'directory = "{folder}"\nlayouts = [{labels}]\n{BASE.format(steps=steps)}')
    study = Study.load(file)
    study.write(study.directory / "study.toml")
    records = []
    for layout in made_up:
        record = RunRecord(layout["label"], 1, layout["status"], layout["reason"], 0, 600.0)
        records.append(record)
        if layout["status"] == "ok":
            _write_run(RunDirectory(study.directory / record.directory), study, layout)
    StudyState.new(study.directory / "study.json", records).write()
    return study.directory


def _write_run(run: RunDirectory, study: Study, layout: dict[str, Any]) -> None:
    run.create()
    study.base.write(run.config_path)
    facts = reports.facts()
    run.write_run(
        {key: facts[key] for key in ("hardware", "software", "mfu_note")} | {"initial_weights_digest": "0" * 16}
    )
    seconds = layout["step_seconds"]["median"]
    for step, loss in enumerate(layout["losses"], 1):
        run.append(
            {
                "step": step,
                "loss": loss,
                "grad_norm": 1.0,
                "learning_rate": 3e-4,
                "tokens": step * 2048 * 2048,
                "seconds": seconds,
                "data_seconds": seconds * layout["data_seconds_fraction"],
                "tokens_per_second": layout["tokens_per_second"]["median"],
                "tokens_per_second_per_device": layout["tokens_per_second_per_device"],
                "mfu": layout["mfu"],
                "hfu": layout["hfu"],
                "peak_memory_bytes": layout["peak_memory_bytes"],
                "peak_memory_bytes_by_rank": [layout["peak_memory_bytes"]] * 64,
                "batch_digest": f"{step:016x}",
                "skipped": False,
            }
        )


if __name__ == "__main__":
    sys.exit(main())
