"""How fast a large trace is broken down, in what memory, and against HolisticTraceAnalysis on the same trace.

    python benchmarks/trace.py                    # 1 GB of trace, uncompressed: seconds of CPU and peak memory
    python benchmarks/trace.py --megabytes 100 --against-hta

The trace is made up: steps of kernels on two streams, a collective after every few of them, the operators and launches
of a host with arguments as torch.profiler writes them. The second it is in the extra `hta`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KERNELS = (
    (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64_warpgroupsize2x1x1_execute_segment_k_off_kernel",
        210.0,
    ),
    (
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 64, 4, false>, true>",
        95.0,
    ),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
        "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, at::native::BinaryFunctor)",
        12.0,
    ),
    ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", 9.0),
)
COLLECTIVE = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
IN_A_STEP = 4000


def main() -> None:
    """Make a trace, break it down in a process of its own, and print what that took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--against-hta", action="store_true")
    parser.add_argument("--read", choices=("torchlayout", "hta"), help=argparse.SUPPRESS)
    parser.add_argument("path", nargs="?", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        print(json.dumps({"torchlayout": ours, "hta": hta}[arguments.read](arguments.path)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.pt.trace.json.gz"
        print(
            f"trace: {write(path, arguments.megabytes * 10**6) / 1e6:,.0f} MB, {path.stat().st_size / 1e6:,.0f} packed"
        )
        results = {tool: measured(tool, path) for tool in ("torchlayout", *(["hta"] if arguments.against_hta else []))}
    if arguments.against_hta:
        compare(results["torchlayout"], results["hta"])


def measured(tool: str, path: Path) -> dict[str, Any]:
    """What a tool says of a trace, and what it took, in a fresh process."""
    command = [sys.executable, __file__, "--read", tool, str(path)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
    result: dict[str, Any] = json.loads(said)
    print(f"{tool}: {result['cpu_seconds']:.1f} s of CPU, {result['peak_bytes'] / 2**30:.2f} GiB at most")
    return result


def compare(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Totals side by side, and how many times faster one is."""
    for name in ("compute", "communication", "idle"):
        apart = abs(one[name] / other[name] - 1)
        print(f"{name}: {one[name]:.4f} s here, {other[name]:.4f} s there, {apart:.2%} apart")
    print(f"{other['cpu_seconds'] / one['cpu_seconds']:.1f} times faster")


def ours(path: str) -> dict[str, Any]:
    """Totals of torchlayout's breakdown, in seconds."""
    started = time.process_time()
    from torchlayout.trace.analyse import analyse

    rank = [step["ranks"][0] for step in analyse(Path(path)).document["steps"]]
    spent = time.process_time() - started
    shares = [(name, value) for part in rank for name, value in part["shares"].items()]
    hidden = sum(value for part in rank for value in part["hidden"].values())
    return {
        "compute": sum(value for name, value in shares if name.startswith(("compute/", "optimizer"))),
        "communication": hidden + sum(value for name, value in shares if name.startswith("communication/")),
        "idle": sum(value for name, value in shares if name == "idle"),
    } | cost(spent)


def hta(path: str) -> dict[str, Any]:
    """Totals of HolisticTraceAnalysis's breakdown, in seconds."""
    started = time.process_time()
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis({0: path}, trace_dir=str(Path(path).parent), include_last_profiler_step=True)
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    spent = time.process_time() - started
    kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
    moved = sum(kinds[kinds["kernel_type"].str.contains("COMMUNICATION")]["sum"])
    return {
        "compute": float(row["compute_time(us)"]) / 1e6,
        "communication": float(moved) / 1e6,
        "idle": float(row["idle_time(us)"]) / 1e6,
    } | cost(spent)


def cost(seconds: float) -> dict[str, float]:
    """What this process took so far."""
    return {"cpu_seconds": seconds, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def write(path: Path, size: int) -> int:
    """Write a trace of about this many bytes, uncompressed; how many they are."""
    head = {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 8}}
    written = 0
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8") as file:
        written += file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        events = made_up()
        while written < size:
            step = ",\n".join(json.dumps(event) for event in next(events))
            written += file.write(step + ",\n")
        written += file.write(json.dumps({"ph": "M", "name": "process_name", "pid": 0, "tid": 0}) + "\n]}\n")
    return written


def made_up() -> Iterator[list[dict[str, Any]]]:
    """Steps of a rank, each a list of events; times in whole microseconds."""
    now, number, step = 1_000_000, 1, 1
    while True:
        begun, events = now, []
        for index in range(IN_A_STEP):
            name, duration = KERNELS[index % len(KERNELS)]
            events += launched(name, 7, now, int(duration), number, index)
            if index % 40 == 0:
                events += launched(COLLECTIVE, 20, now, 300, number + 1, index)
            now, number = now + int(duration) + (40 if index % 10 == 0 else 0), number + 2
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
        yield [mark | {"ts": begun - 50, "dur": now - begun + 49}, *events]
        now, step = now + 100, step + 1


def launched(name: str, stream: int, at: int, duration: int, number: int, index: int) -> list[dict[str, Any]]:
    """An operator, its launch, the arrow from it, and the kernel."""
    operator = {"External id": number, "Record function id": 0, "Ev Idx": index, "Input Dims": [[4096, 5120], [5120]]}
    kernel = {
        "External id": number, "queued": 0, "device": 0, "context": 1, "stream": stream, "correlation": number,
        "registers per thread": 168, "shared memory": 213248, "blocks per SM": 1.0, "warps per SM": 12.0,
        "grid": [132, 1, 1], "block": [384, 1, 1], "est. achieved occupancy %": 19,
    }  # fmt: skip
    if name == COLLECTIVE:
        kernel |= {
            "Collective name": "_allgather_base", "In msg nelems": 2**22, "Out msg nelems": 2**25, "Group size": 8,
            "dtype": "BFloat16", "Process Group Name": "1", "Process Group Description": "mesh_shard",
            "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
        }  # fmt: skip
    host = {"ph": "X", "pid": 1, "tid": 1, "ts": at - 20}
    return [
        host | {"cat": "cpu_op", "name": "aten::mm", "dur": 9, "args": operator},
        host | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 4, "args": {"correlation": number}},
        {"ph": "s", "id": number, "pid": 1, "tid": 1, "ts": at - 20, "cat": "ac2g", "name": "ac2g"},
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": at, "dur": duration, "args": kernel},
    ]


if __name__ == "__main__":
    main()
