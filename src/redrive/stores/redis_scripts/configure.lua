-- needs: full states groups settings
-- {queue, what is said of it}: 1, or what contradicts itself.
local queue, changes = asked[1], asked[2]
local before = rules(queue)
local said, changed = {}, call('HEXISTS', SETTINGS, queue) == 0
for name, value in pairs(before.said) do said[name] = value end
for name, value in pairs(changes) do
  changed = changed or said[name] ~= value
  said[name] = value
end
if not changed then return 1 end -- as every start of an app declares
local refused = contradiction(said, widths_of(queue))
if refused then return refused end
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
