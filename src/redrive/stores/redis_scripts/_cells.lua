-- Cells: version, when it expires (0: never), whether it is there, value. A deleted one stays, so that its versions are
-- never used twice. Swaps are tried on `cells` first and written by `write_cells`, as a script cannot take back.
local CELL = '>I8I8B'
local cells, swapped = {}, {}

local function cell_of(key)
  local cell = cells[key]
  if cell == nil then
    local packed = call('HGET', root .. 'c', key)
    if packed then
      local version, expires, there = struct.unpack(CELL, packed)
      cell = {version = version, live = there == 1 and (expires == 0 or expires > now)}
    else
      cell = {version = 0, live = false}
    end
    cells[key] = cell
  end
  return cell
end

-- Whether it applies; then those after it find it done. A swap is {key, version, ARGV index of the value or nil, ttl or nil}.
local function swap_cell(swap)
  local key, wanted, value, ttl = swap[1], swap[2], swap[3], swap[4]
  local cell = cell_of(key)
  if (cell.live and cell.version or 0) ~= wanted then return false end
  local expires = ttl and math.min(now + ttl, TIME_MAX) or 0
  local packed = struct.pack(CELL, cell.version + 1, expires, value and 1 or 0) .. (value and ARGV[value] or '')
  cells[key] = {version = cell.version + 1, live = value ~= nil and (expires == 0 or expires > now), packed = packed}
  swapped[key] = true
  return true
end

-- All of them, or none.
local function swap_together(swaps)
  local before = {}
  for _, swap in ipairs(swaps) do
    local key = swap[1]
    if before[key] == nil then before[key] = {cell_of(key), swapped[key]} end
    if not swap_cell(swap) then
      for key, was in pairs(before) do
        cells[key], swapped[key] = was[1], was[2]
      end
      return false
    end
  end
  return true
end

-- The position of the first that does not apply, or nil.
local function swap_all(swaps)
  for i, swap in ipairs(swaps) do
    if not swap_cell(swap) then return i end
  end
end

local function write_cells()
  for key in pairs(swapped) do keep_field(root .. 'c', key, cells[key].packed) end
  swapped = {}
end
