-- needs: states faults cells groups puts
-- {drafts, zones, swaps, whether the answer to this put may have been lost}, the ids in ARGV[3]: {now, duplicates}, or
-- what was refused.
local drafts, zones, swaps, again = unpack(asked, 1, 4)
local list, duplicates, repeated = plan_puts(drafts, zones, ARGV[3], again)
if not list then return {'stored', duplicates} end
if repeated then return {now, duplicates} end -- its swaps were made with it
local conflict = swap_all(swaps)
if conflict then return {'conflict', conflict} end
write_puts(list)
write_cells()
batches:write()
flush()
return {now, duplicates}
