-- needs: states cells groups puts
-- {drafts, zones, swaps, whether the answer to this put may have been lost}, the ids in ARGV[3]: {now, duplicates}, or
-- what was refused.
local list, duplicates, repeated = plan_puts(asked[1], asked[2], ARGV[3], asked[4])
if not list then return {'stored', duplicates} end
if repeated then return {now, duplicates} end -- its swaps were made with it
local conflict = swap_all(asked[3])
if conflict then return {'conflict', conflict} end
write_puts(list)
write_cells()
flush()
return {now, duplicates}
