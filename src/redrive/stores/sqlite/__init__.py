"""The store on SQLite: an embedded database file that processes of one machine share."""
