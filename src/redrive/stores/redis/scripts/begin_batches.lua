-- This namespace has batches from now on. Of the keys that a script from before batches reads before it writes anything,
-- these have other names then (_base.lua), and texts stand at theirs: so such a script fails, and settles nothing that it
-- cannot count.
if call('EXISTS', root .. 'v') == 1 then return 0 end
for _, name in ipairs({'m', 's', 'set', 'ga'}) do
  if call('EXISTS', root .. name) == 1 then call('RENAME', root .. name, root .. name .. '2') end
  call('SET', root .. name, 'this namespace has batches, which a newer version of redrive counts: upgrade')
end
call('SET', root .. 'v', '2')
return 1
