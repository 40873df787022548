"""What each button does: functions of one request that call triage, and say what they did."""
