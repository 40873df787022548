-- {keys}: {now, cells}: per key its version and value, or false.
local cells = {}
for i, packed in ipairs(each('HMGET', root .. 'c', asked[1])) do
  cells[i] = false
  if packed and #packed >= 17 then
    local version, expires = struct.unpack('>I8I8B', packed)
    if version <= 2 ^ 52 and (expires == 0 or expires > now) then cells[i] = {version, sub(packed, 18)} end
  end
end
return {now, cells}
