"""The actions of the buttons: functions of one request that call triage and report the result."""
