"""What each page shows, as records: functions of one request that read the store and change nothing."""
