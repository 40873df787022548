"""Show the nouns of redrive to people and programs: what command line, pages and terminal have in common."""
