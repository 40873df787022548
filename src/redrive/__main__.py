"""`python -m redrive`."""

from .program.main import main

main()
