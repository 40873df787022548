"""What redrive costs, measured: see README.md. `python -m benchmarks --help` lists the choices."""
