"""The content of each page, as records: functions of one request that read the store and change nothing."""
