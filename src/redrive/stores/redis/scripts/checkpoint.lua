-- needs: states
-- The member in ARGV[3], its fence in ARGV[4], what to keep in ARGV[5]: 1, or 0 if the receipt is stale.
local id = sub(ARGV[3], 7)
local packed = call('HGET', STATES, id)
if not is_current(packed, ARGV[4], ARGV[3]) then return 0 end
local state = state_of(packed)
if not state then return 0 end
mark(state, HAS_PROGRESS)
keep_state(id, state)
keep_field(PROGRESS, id, ARGV[5])
flush()
return 1
