-- For what must go on when the server is at its maxmemory: acks, claims, retries and what operators say. Redis refuses
-- a script's first write only, if that may take memory; this one never does, as there is no such key.
call('DEL', root .. '-')
