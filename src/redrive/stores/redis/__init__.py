"""The store on Redis, and on servers that speak its protocol."""
