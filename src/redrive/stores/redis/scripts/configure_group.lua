-- needs: full states cells groups settings
-- {queue, group or '', width or nil, resume, swaps}: 1, or what contradicts itself, or the swap that does not apply; then
-- nothing was changed.
local queue, group, width, resume, swaps = unpack(asked, 1, 5)
local widths = widths_of(queue)
if width then widths[group] = width > 0 and width or nil end
local refused = contradiction(rules(queue).said, widths)
if refused then return refused end
local conflict = swap_all(swaps)
if conflict then return {'conflict', conflict} end
write_cells()
if width == 0 then
  call('HDEL', widths_key(queue), group)
elseif width then
  call('HSET', widths_key(queue), group, width)
end
if resume then unblock(queue, group) end
if group == '' then touch_all(queue) else touch(queue, group) end
admit()
wake_waiters(queue)
return 1
