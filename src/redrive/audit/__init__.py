"""The audit log: who changed what, when and why. Each entry holds the hash of the one before."""
