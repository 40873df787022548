"""Show the nouns of redrive to people and programs: what the command line, the pages and the terminal have in common."""
