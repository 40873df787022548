-- needs: full states
-- {queue, priority, whys}, members in ARGV[3]: messages that were just claimed and that the claiming process cannot read.
-- The answer: batches of which one died.
local queue, priority, whys = unpack(asked)
for i, why in ipairs(whys) do set_aside(sub(ARGV[3], 22 * i - 21, 22 * i), queue, priority, why) end
return batches.named
