-- needs: full states cells groups settings
-- {queue, what is said of it, swaps}: 1, or what contradicts itself, or the swap that does not apply; then nothing was
-- changed.
local queue, changes, swaps = unpack(asked, 1, 3)
local before = rules(queue)
local said, changed = {}, call('HEXISTS', SETTINGS, queue) == 0
for name, value in pairs(before.said) do said[name] = value end
for name, value in pairs(changes) do
  changed = changed or said[name] ~= value
  said[name] = value
end
local conflict = swap_all(swaps)
if conflict then return {'conflict', conflict} end
if not changed then -- as every start of an app declares
  write_cells()
  return 1
end
local refused = contradiction(said, widths_of(queue))
if refused then return refused end
write_cells()
call('HSET', SETTINGS, queue, cmsgpack.pack(said))
rules_of[queue] = nil
local after = rules(queue)
for _, group in ipairs(call('SMEMBERS', names_key(queue))) do
  if after.strict ~= before.strict then reorder(queue, group, after.strict) end
  if before.block and not after.block then unblock(queue, group) end
  touch(queue, group)
end
admit()
wake_waiters(queue)
return 1
