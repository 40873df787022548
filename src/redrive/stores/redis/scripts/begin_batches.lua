-- This namespace has batches from now on, and the format of that; see `format` in _base.lua.
if format ~= '' then return 0 end
for _, name in ipairs({'m', 's', 'ga'}) do
  if call('EXISTS', root .. name) == 1 then call('RENAME', root .. name, root .. name .. '2') end
  call('SET', root .. name, 'this namespace has batches, which a newer version of redrive counts: upgrade')
end
call('SET', root .. 'v', '2')
return 1
