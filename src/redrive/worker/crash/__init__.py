"""Records of started runs, and the recovery of messages whose worker was killed."""
