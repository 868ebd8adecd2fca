"""`python -m qpi_distill` is the command `qpi-distill`."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
