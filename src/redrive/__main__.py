"""`python -m redrive`."""

from .cli.main import main

main()
