"""`python -m torchlayout`: the same as the command `torchlayout`."""

from torchlayout.cli import main

if __name__ == "__main__":
    main()
