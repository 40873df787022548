"""The audit log: who changed what, when and why. Each entry holds the hash of the one before.

Begin with `log`, which writes an entry in the commit of the change itself. `chain` computes and checks the hashes,
`actor` says who acts.
"""
