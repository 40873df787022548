-- Cells: version, when it expires (0: never), 1, value. Swaps are tried on `cells` first and written by `write_cells`,
-- as a script cannot take back. Versions come from one counter, so that none is used twice though cells go.
local CELL, CELLS, CELL_VERSIONS = '>I8I8B', root .. 'c', root .. 'cn'
local cells, swapped, counted = {}, {}, nil
local cell_of, read_cells, swap_cell
do -- (a script has 200 local names at most)

-- One that cannot be read is none: a swap writes it anew.
local function unpack_cell(packed)
  if not packed then return {version = 0, live = false} end
  if #packed < 17 then return {version = 0, live = false, stored = true} end
  local version, expires = struct.unpack(CELL, packed)
  if version > 2 ^ 52 then return {version = 0, live = false, stored = true} end
  return {version = version, live = expires == 0 or expires > now, stored = true}
end

function cell_of(key)
  local cell = cells[key]
  if cell == nil then
    cell = unpack_cell(call('HGET', CELLS, key))
    cells[key] = cell
  end
  return cell
end

-- All that will be looked at, in one go.
function read_cells(keys)
  for i, packed in ipairs(each('HMGET', CELLS, keys)) do cells[keys[i]] = unpack_cell(packed) end
end

-- What the counter gave last; where it is no number, more than it can have given.
local function last_version()
  local last = tonumber(call('GET', CELL_VERSIONS) or 0)
  return last and last >= 0 and last <= 2 ^ 52 and math.floor(last) or now * 16
end

-- A version above all that the counter gave, and above this one, should the counter have been lost.
local function next_version(above)
  counted = math.max(counted or last_version(), above) + 1
  return counted
end

-- Whether it applies; then those after it find it done. `value`: its index in ARGV, or nil.
function swap_cell(key, wanted, value, ttl)
  local cell = cell_of(key)
  if (cell.live and cell.version or 0) ~= wanted then return false end
  local version, packed = next_version(cell.version), nil
  if value then
    local expires = ttl and math.min(now + ttl, TIME_MAX) or 0
    packed = struct.pack(CELL, version, expires, 1) .. ARGV[value]
    cells[key] = {version = version, live = expires == 0 or expires > now, packed = packed, stored = cell.stored}
  else
    cells[key] = {version = version, live = false, stored = cell.stored}
  end
  swapped[key] = true
  return true
end

end

-- All of them, or none. A swap is {key, version, ARGV index of the value or nil, ttl or nil}.
local function swap_together(swaps)
  if not swaps then return true end
  local before = {}
  for _, swap in ipairs(swaps) do
    local key = swap[1]
    if before[key] == nil then before[key] = {cell_of(key), swapped[key]} end
    if not swap_cell(unpack(swap, 1, 4)) then
      for known, was in pairs(before) do cells[known], swapped[known] = unpack(was, 1, 2) end
      return false
    end
  end
  return true
end

-- The position of the first that does not apply, or nil.
local function swap_all(swaps)
  for i, swap in ipairs(swaps) do
    if not swap_cell(unpack(swap, 1, 4)) then return i end
  end
end

local function write_cells()
  local fields, deleted = {}, {}
  for key in pairs(swapped) do
    local cell = cells[key]
    if cell.packed then
      local n = #fields
      fields[n + 1], fields[n + 2] = key, cell.packed
    elseif cell.stored then
      deleted[#deleted + 1] = key
    end
  end
  swapped = {}
  if counted then call('SET', CELL_VERSIONS, text_of(counted)) end
  each('HDEL', CELLS, deleted)
  -- As `spread`; a cell may have any name.
  if #fields >= MANY and call('HSETNX', CELLS, LONG, LONG) == 1 then call('HDEL', CELLS, LONG) end
  each('HSET', CELLS, fields)
end
