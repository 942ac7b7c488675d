from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "launch"
SCRIPTS = sorted([*LAUNCH.iterdir(), ROOT / ".ci" / "run"])

# Stands for Python: says what it is asked to run, and makes itself anew where it is asked for a venv.
FAKE_PYTHON = """#!/usr/bin/env bash
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi
if [ "$1" = --version ]; then echo "Python 3.11.0"; fi
if [ "$1" = -m ]; then echo "$*" >> "$LOG"; fi
if [ -n "${FAIL_ON:-}" ] && [[ "$*" == *"$FAIL_ON"* ]]; then exit 1; fi
exit 0
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return program(tmp_path / "programs" / "fake-python", FAKE_PYTHON)


class Shell:
    """Runs a script with little but the given environment, and reads what the fake Python was asked."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self.python, self.log = folder, python, folder / "log"

    def __call__(
        self, script: Path, *arguments: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        self.log.write_text("")
        own = {"PATH": f"{self.folder / 'programs'}:{os.environ['PATH']}", "LOG": str(self.log)}
        return subprocess.run(
            [str(script), *arguments],
            env=own | {"PYTHON": str(self.python)} | environment,
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def shell(tmp_path: Path, python: Path) -> Shell:
    return Shell(tmp_path, python)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_is_bash_and_can_be_started(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=60)
    assert os.access(script, os.X_OK) == (script.name != "common.sh")


class TestEnvironment:
    """`environment` of common.sh, in a copy of the repository with a Python that only says what it is asked."""

    @pytest.fixture
    def copy(self, tmp_path: Path) -> Path:
        folder = tmp_path / "a copy"
        shutil.copytree(LAUNCH, folder / "launch")
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)
        program(folder / "launch" / "only.sh", 'set -euo pipefail; source "${BASH_SOURCE%/*}/common.sh"; environment')
        text = (folder / "launch" / "only.sh").read_text()
        program(folder / "launch" / "only.sh", f"#!/usr/bin/env bash\n{text}\n")
        return folder

    def test_torch_comes_first_and_the_project_after_it(self, copy: Path, shell: Shell) -> None:
        assert shell(copy / "launch" / "only.sh").returncode == 0
        made, torch, project = (line for line in shell.asked if "--version" not in line)
        assert made == f"-m venv {copy}/.venv"
        assert torch.endswith("torch==2.13.0")
        assert project.endswith(f"-e {copy}[dev,plan,text]")
        assert all(f"-c {copy}/constraints.txt" in line for line in (torch, project))

    def test_the_second_time_nothing_is_done(self, copy: Path, shell: Shell) -> None:
        shell(copy / "launch" / "only.sh")
        done = shell(copy / "launch" / "only.sh", cwd=Path("/"))
        assert (done.returncode, shell.asked, done.stderr) == (0, [], "")

    @pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
    def test_other_requirements_are_installed_into_what_is_there(self, copy: Path, shell: Shell, name: str) -> None:
        shell(copy / "launch" / "only.sh")
        with (copy / name).open("a") as file:
            file.write("# another\n")
        assert shell(copy / "launch" / "only.sh").returncode == 0
        assert [line.split()[1] for line in shell.asked] == ["pip", "pip", "pip"]

    @pytest.mark.parametrize("step", ["-m venv", "torch==2.13.0", "[dev,plan,text]"])
    def test_an_interrupted_installation_is_taken_up_again(self, copy: Path, shell: Shell, step: str) -> None:
        assert shell(copy / "launch" / "only.sh", FAIL_ON=step).returncode != 0
        assert shell(copy / "launch" / "only.sh").returncode == 0
        assert shell.asked[-1].endswith("[dev,plan,text]")
        shell(copy / "launch" / "only.sh")
        assert shell.asked == []

    def test_a_moved_folder_gets_a_new_environment(self, copy: Path, shell: Shell) -> None:
        shell(copy / "launch" / "only.sh")
        moved = copy.rename(copy.with_name("moved"))
        assert shell(moved / "launch" / "only.sh").returncode == 0
        assert f"-m venv {moved}/.venv" in shell.asked

    def test_without_a_python_it_is_said_what_is_missing(self, copy: Path, shell: Shell) -> None:
        programs = shell.folder / "few"
        programs.mkdir()
        for name in ("bash", "env", "dirname", "cat", "cksum", "head", "rm", "mv"):
            (programs / name).symlink_to(shutil.which(name) or name)
        done = shell(copy / "launch" / "only.sh", PATH=str(programs), PYTHON="")
        assert done.returncode == 2
        assert "no Python 3.10 or later" in done.stderr


class TestTorchrun:
    script = LAUNCH / "torchrun.sh"

    def test_one_node_passes_everything_on(self, shell: Shell) -> None:
        arguments = ("some config.toml", "--layout", "fsdp8", "--set", "train.steps=5")
        assert shell(self.script, *arguments, NPROC_PER_NODE="8").returncode == 0
        assert shell.asked == [
            "-m torch.distributed.run --standalone --nproc-per-node 8 --max-restarts 0 -m torchlayout.train "
            + " ".join(arguments)
        ]

    def test_ranks_that_died_are_started_anew_as_often_as_asked(self, shell: Shell) -> None:
        assert shell(self.script, "c.toml", NPROC_PER_NODE="8", MAX_RESTARTS="3").returncode == 0
        assert "--max-restarts 3" in shell.asked[0]

    def test_several_nodes_meet_at_the_first(self, shell: Shell) -> None:
        nodes = {"NNODES": "4", "NODE_RANK": "3", "MASTER_ADDR": "first", "NPROC_PER_NODE": "8"}
        assert shell(self.script, "c.toml", **nodes).returncode == 0
        assert "--nnodes 4 --node-rank 3 --master-addr first --master-port 29500 --nproc-per-node 8" in shell.asked[0]

    @pytest.mark.parametrize(
        ("environment", "says"),
        [
            ({"NNODES": "two"}, "NNODES = 'two' cannot be"),
            ({"NNODES": "0"}, "NNODES = '0' cannot be; legal are whole numbers from 1"),
            ({"NNODES": "2", "NODE_RANK": "2"}, "NODE_RANK = '2' cannot be; legal are whole numbers from 0 to 1"),
            ({"NNODES": "2", "MASTER_ADDR": "first"}, "NNODES = 2 needs NODE_RANK"),
            ({"NNODES": "2", "NODE_RANK": "0"}, "NNODES = 2 needs MASTER_ADDR"),
            ({"NODE_RANK": "1"}, "NODE_RANK = '1' cannot be"),
            ({"MAX_RESTARTS": "-1"}, "MAX_RESTARTS = '-1' cannot be"),
            (
                {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "first", "MAX_RESTARTS": "1"},
                "MAX_RESTARTS = 1 works on one node",
            ),
            ({"NPROC_PER_NODE": "-1"}, "NPROC_PER_NODE = '-1' cannot be"),
            ({"MASTER_PORT": "70000"}, "MASTER_PORT = '70000' cannot be; legal are whole numbers from 1 to 65535"),
            ({"PYTHON": "/no/python"}, "PYTHON = '/no/python' is no program"),
        ],
        ids=str,
    )
    def test_a_wrong_environment_is_one_sentence(self, shell: Shell, environment: dict[str, str], says: str) -> None:
        done = shell(self.script, "c.toml", **environment)
        assert (done.returncode, done.stderr.count("\n"), shell.asked) == (2, 1, [])
        assert says in done.stderr

    def test_without_a_configuration_it_says_how_it_is_called(self, shell: Shell) -> None:
        done = shell(self.script)
        assert (done.returncode, "no configuration was given" in done.stderr) == (2, True)


class TestSlurm:
    script = LAUNCH / "slurm.sbatch"
    allocation = {  # noqa: RUF012 (read only)
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "node[07-08]",
        "SLURM_TASKS_PER_NODE": "1(x2)",
        "SLURM_GPUS_ON_NODE": "8",
    }

    @pytest.fixture(autouse=True)
    def slurm(self, shell: Shell) -> None:
        program(shell.folder / "programs" / "srun", '#!/usr/bin/env bash\necho "srun $*" >> "$LOG"\n')
        program(shell.folder / "programs" / "scontrol", "#!/usr/bin/env bash\nprintf 'node07\\nnode08\\n'\n")

    def test_everything_comes_from_the_allocation(self, shell: Shell) -> None:
        done = shell(self.script, "c.toml", "--layout", "fsdp16", **self.allocation)
        assert done.returncode == 0, done.stderr
        (asked,) = shell.asked
        assert asked.startswith("srun --nodes 2 --ntasks 2 --ntasks-per-node 1 --kill-on-bad-exit=1 ")
        assert "--nnodes 2 --nproc-per-node 8 --max-restarts 0 " in asked
        assert f"--rdzv-id 123456 --rdzv-backend c10d --rdzv-endpoint node07:{23456} " in asked
        assert asked.endswith("-m torchlayout.train c.toml --layout fsdp16")

    def test_the_kind_of_gpu_may_stand_before_their_number(self, shell: Shell) -> None:
        changed = self.allocation | {"SLURM_GPUS_ON_NODE": "", "SLURM_GPUS_PER_NODE": "a100:4"}
        assert shell(self.script, "c.toml", **changed).returncode == 0
        assert "--nproc-per-node 4" in shell.asked[0]

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"SLURM_JOB_ID": ""}, "is no Slurm job"),
            ({"SLURM_TASKS_PER_NODE": "8(x2)"}, "each node must have one task, but the allocation has 8(x2)"),
            ({"SLURM_TASKS_PER_NODE": "2,1"}, "each node must have one task"),
            ({"SLURM_GPUS_ON_NODE": ""}, "the allocation has no GPUs"),
            ({"PYTHON": "/no/python"}, "/no/python is no program"),
        ],
        ids=str,
    )
    def test_a_wrong_allocation_is_one_sentence(self, shell: Shell, changes: dict[str, str], says: str) -> None:
        done = shell(self.script, "c.toml", **self.allocation | changes)
        assert (done.returncode, done.stderr.count("\n"), shell.asked) == (2, 1, [])
        assert says in done.stderr
