-- needs: full states
-- {queue, priority, whys}, members in ARGV[3]: messages that were just claimed and that the claiming process cannot read.
for i, why in ipairs(asked[3]) do set_aside(sub(ARGV[3], 22 * i - 21, 22 * i), asked[1], asked[2], why) end
return #aside
