"""torchlayout: a layout is a value; training, comparing, planning, simulating and tracing are functions of it."""

__version__ = "0.1.0"
