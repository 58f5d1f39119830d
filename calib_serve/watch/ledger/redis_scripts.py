"""What the Redis ledger does in one step, as scripts that Redis runs.

``KEYS[1]`` is the ledger's root. Sums are hashes from the number of a sum to its value.
"""

from __future__ import annotations

__all__ = [
    "ACCEPT", "ADD", "FEW", "FOLD", "LOCK", "MERGE", "MOST_FEW", "RENEW", "SNAPSHOT", "SWITCH", "TAKE_BACK",
    "TAKE_LEASE", "UNLEASE", "UNLOCK",
]  # fmt: skip

FEW = b":few"
"""How the keys end that hold an epoch's bits as a list."""

MOST_FEW = 2730
"""Bits of an epoch that are a list: with as many, a bitmap of 8 KiB takes 3 bytes of each."""

# One script, so one step: the receipt and its label in the journal, or neither. Redis' own clock says what
# has expired, so hosts whose clocks disagree cannot have a label counted twice.
_COMMON = """
local root = KEYS[1]
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local function whole(number) return string.format('%.0f', number) end
local function add(batch)
  local copying = redis.call('EXISTS', root .. ':copying') == 1
  for row, fields in ipairs(batch.sums) do
    local name, key = batch.rows[row].name
    if batch.rows[row].start then
      key = root .. ':span:' .. name
      redis.call('ZADD', root .. ':spans', batch.rows[row].start, name)
    else
      key = root .. ':total:' .. name
      redis.call('SADD', root .. ':totals', name)
    end
    for _, pair in ipairs(fields) do
      redis.call('HINCRBYFLOAT', key, pair[1], string.format('%.17g', pair[2]))
    end
    if copying then redis.call('SADD', root .. ':touched', key) end
  end
end
"""
# Where Redis may evict, nothing is counted. What it evicted may be a receipt: from the next step on, those of
# predictions made until then are forgotten, whether they were counted or not.
_EVICTION = """
local memory = redis.call('INFO', 'memory')
local policy = string.match(memory, 'maxmemory_policy:(%S+)')
if string.match(memory, 'maxmemory:(%d+)') ~= '0' and policy ~= 'noeviction' then
  return redis.error_reply('EVICTS Redis may evict receipts (maxmemory-policy ' .. policy ..
    '); set maxmemory-policy noeviction')
end
local evicted = string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)')
if evicted ~= (redis.call('GET', root .. ':evicted') or '0') then
  -- 0 again after a restart: noted as well, for as many may be evicted again.
  if evicted ~= '0' then
    redis.call('SET', root .. ':forgotten', whole(ms))
    redis.call('SET', root .. ':evicted_at', whole(ms))
  end
  redis.call('SET', root .. ':evicted', evicted)
end
"""
# An epoch's bits are a list of their numbers while few are set, 16 bits each, and a bitmap from then on.
# ``set``: whether a bit was not set before, where it is now, and for how long that is kept yet: below 0 if
# nothing was there.
_EPOCHS = (
    f"""
local most_few = {MOST_FEW}
"""
    + """
local function listed(list, pair)
  local at = string.find(list, pair, 1, true)
  while at and at % 2 == 0 do at = string.find(list, pair, at + 1, true) end
  return at
end
local function set(epoch, bit)
  local key, few = root .. ':epoch:' .. epoch, root .. ':epoch:' .. epoch .. ':few'
  local list, pair = redis.call('GET', few), string.char(math.floor(bit / 256), bit % 256)
  if list and listed(list, pair) then return false end
  if redis.call('EXISTS', key) == 1 then
    local left = redis.call('PTTL', key)
    return redis.call('SETBIT', key, bit, 1) == 0, key, left
  end
  local left = redis.call('PTTL', few)
  list = (list or '') .. pair
  if #list <= 2 * most_few then
    redis.call('SET', few, list)
    return true, few, left
  end
  -- Written whole: a string that SETBIT grows takes twice its memory.
  local bytes = {}
  for i = 1, 8192 do bytes[i] = 0 end
  for i = 1, #list, 2 do
    local high, low = string.byte(list, i, i + 1)
    local at = 32 * high + math.floor(low / 8) + 1
    bytes[at] = bytes[at] + 2 ^ (7 - low % 8)
  end
  for i = 1, 8192 do bytes[i] = string.char(bytes[i]) end
  redis.call('SET', key, table.concat(bytes))
  redis.call('DEL', few)
  return true, key, left
end
"""
)
ACCEPT = (
    _COMMON
    + _EVICTION
    + _EPOCHS
    + """
local batch, fates = cjson.decode(ARGV[1]), {}
if batch.mark and redis.call('GET', root .. ':state:' .. batch.given_up) == batch.named then
  return redis.error_reply('the batch was given up')
end
local retention = math.max(batch.retention, tonumber(redis.call('GET', root .. ':retention') or 0))
local forgotten = tonumber(redis.call('GET', root .. ':forgotten') or '-inf')
-- While a retention is prolonged, what is older than the shorter one may have expired before its turn came.
local prolonging = tonumber(redis.call('GET', root .. ':prolonging') or 0)
if prolonging > 0 then forgotten = math.max(forgotten, ms - retention + prolonging) end
local gone = redis.call('ZRANGEBYSCORE', root .. ':epochs', '-inf', ms, 'LIMIT', 0, 1000)
if #gone > 0 then
  redis.call('ZREM', root .. ':epochs', unpack(gone))
  redis.call('HDEL', root .. ':bits', unpack(gone))
end
local function fate(one, left)
  local fresh, key, until_ms = set(one.epoch, one.bit)
  if not fresh then return 'duplicate' end
  -- How many bits there must be is kept apart: an epoch whose bits were lost is never begun again.
  local bits = redis.call('HINCRBY', root .. ':bits', one.epoch, 1)
  if bits > 1 and until_ms < 0 then
    redis.call('HSET', root .. ':bits', one.epoch, -1000000000)
    bits = -1
  end
  redis.call('PEXPIRE', key, whole(math.max(until_ms, left)))
  if until_ms < left then redis.call('ZADD', root .. ':epochs', ms + left, one.epoch) end
  return bits < 0 and 'forgotten' or 'counted'
end
for i, one in ipairs(batch.labels) do
  local left = one.time * 1000 + retention - ms
  -- In its last millisecond it is over: Redis keeps nothing for 0 of them.
  if left < 1 or one.time * 1000 <= forgotten then
    fates[i] = 'forgotten'
  else
    fates[i] = fate(one, left)
  end
  if fates[i] == 'counted' then
    redis.call('RPUSH', root .. ':journal', one.row)
    if batch.detect then
      redis.call('SADD', root .. ':waiting', one.version)
      redis.call('ZADD', root .. ':waiting:' .. one.version, one.time, one.row)
    end
  end
end
if batch.mark then
  local letters = {}
  for i, fate in ipairs(fates) do letters[i] = string.sub(fate, 1, 1) end
  redis.call('SET', root .. ':state:' .. batch.mark, batch.named .. ' ' .. table.concat(letters))
end
return fates
"""
)
# All is looked up before anything is changed: a script that fails takes nothing back of what it did.
TAKE_BACK = (
    _COMMON
    + """
local batch, keys = cjson.decode(ARGV[1]), {}
local mark = root .. ':state:' .. batch.mark
if (redis.call('GET', mark) or '') ~= batch.before then return 0 end
for i, row in ipairs(batch.rows) do
  for _, name in ipairs(row.names) do
    local key, enough = root .. row.kind .. name, true
    for _, pair in ipairs(row.labels) do
      if tonumber(redis.call('HGET', key, pair[1]) or 0) < pair[2] then enough = false end
    end
    if enough and not keys[i] then keys[i] = key end
  end
  if not keys[i] and not row.old then return -1 end
end
local copying = redis.call('EXISTS', root .. ':copying') == 1
for i, row in ipairs(batch.rows) do
  local key, left = keys[i], 0
  if key then
    if copying then redis.call('SADD', root .. ':touched', key) end
    for _, pair in ipairs(row.sums) do
      redis.call('HINCRBYFLOAT', key, pair[1], string.format('%.17g', -pair[2]))
    end
    for _, bin in ipairs(batch.bins) do
      local labels = tonumber(redis.call('HGET', key, bin[1]) or 0)
      left = left + labels
      if labels == 0 then redis.call('HDEL', key, unpack(bin)) end
    end
    if left == 0 then redis.call('HDEL', key, unpack(batch.whole)) end
  end
end
for _, one in ipairs(batch.waiting) do redis.call('ZREM', root .. ':waiting:' .. one[1], one[2]) end
redis.call('INCRBY', root .. ':state:' .. batch.taken_out, batch.labels)
redis.call('SET', mark, batch.after)
return 1
"""
)
FOLD = (
    _COMMON
    + """
if (redis.call('GET', root .. ':folds') or '0') ~= ARGV[2] then return 0 end
add(cjson.decode(ARGV[1]))
redis.call('LTRIM', root .. ':journal', ARGV[3], -1)
return redis.call('INCR', root .. ':folds')
"""
)
ADD = (
    _COMMON
    + _EVICTION
    + """
local batch = cjson.decode(ARGV[1])
if batch.once then
  local key = root .. ':batch:' .. batch.once
  local known = redis.call('GET', key)
  if known then return known end
  redis.call('SET', key, batch.known, 'PX', whole(batch.left))
end
add(batch)
return 1
"""
)
MERGE = """
local root, name, to = KEYS[1], ARGV[1], ARGV[2]
local kept = redis.call('HGETALL', root .. ':span:' .. name)
if to ~= '' then
  for i = 1, #kept, 2 do redis.call('HINCRBYFLOAT', root .. ':span:' .. to, kept[i], kept[i + 1]) end
  redis.call('ZADD', root .. ':spans', ARGV[3], to)
  if redis.call('EXISTS', root .. ':copying') == 1 then
    redis.call('SADD', root .. ':touched', root .. ':span:' .. to)
  end
end
redis.call('DEL', root .. ':span:' .. name)
return redis.call('ZREM', root .. ':spans', name)
"""
UNLOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
# The number of whoever takes the lock is greater than that of any holder before.
LOCK = """
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
return redis.call('INCR', KEYS[2])
"""
RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
# A lease is renewed without memory, so that a Redis that is full takes it from nobody.
TAKE_LEASE = """
local held, left = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
if held and left > 0 then
  local ok, holder = pcall(cjson.decode, held)
  if not (ok and holder.id == ARGV[1]) then return {held, left} end
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return false
"""
UNLEASE = """
local held = redis.call('GET', KEYS[1])
if not held then return 0 end
local ok, holder = pcall(cjson.decode, held)
if ok and holder.id == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
# All keys below the root, of one moment: name, kind, milliseconds left, content. What ``ARGV[2]`` names was
# read already: epochs with so many bits, and sums that nobody has touched since ``copying`` was set.
SNAPSHOT = """
local root, known = KEYS[1], cjson.decode(ARGV[2])
if redis.call('GET', root .. ':copying') ~= ARGV[3] then return false end
local told, seen, cursor = {}, {[root .. ':lock'] = true, [root .. ':copying'] = true}, '0'
seen[root .. ':touched'] = true
local function same(key, kind)
  if string.sub(key, -4) == ':few' then return redis.call('STRLEN', key) / 2 == known[key] end
  if kind == 'string' then return redis.call('BITCOUNT', key) == known[key] end
  return redis.call('SISMEMBER', root .. ':touched', key) == 0
end
local read = {
  string = function(key) return redis.call('GET', key) end,
  hash = function(key) return redis.call('HGETALL', key) end,
  list = function(key) return redis.call('LRANGE', key, 0, -1) end,
  set = function(key) return redis.call('SMEMBERS', key) end,
  zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
}
repeat
  local step = redis.call('SCAN', cursor, 'MATCH', ARGV[1], 'COUNT', 1000)
  cursor = step[1]
  for _, key in ipairs(step[2]) do
    local kind = redis.call('TYPE', key).ok
    if read[kind] and not seen[key] then
      seen[key] = true
      local known_still = known[key] and same(key, kind)
      told[#told + 1] = {key, kind, redis.call('PTTL', key), not known_still and read[kind](key)}
    end
  end
until cursor == '0'
redis.call('DEL', root .. ':copying', root .. ':touched')
return {redis.call('TIME'), told}
"""
# What is staged takes the place of what is there, which goes on under another root.
SWITCH = """
local root, stage, aside = KEYS[1], ARGV[1], ARGV[2]
local function keys(pattern)
  local found, cursor = {}, '0'
  repeat
    local step = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', 1000)
    cursor = step[1]
    for _, key in ipairs(step[2]) do found[key] = true end
  until cursor == '0'
  return found
end
local old, new = keys(ARGV[3]), keys(ARGV[4])
if next(old) and ARGV[5] == '0' then return 'there' end
if redis.call('EXISTS', stage .. '.expires', stage .. ':bins') < 2 then return 'gone' end
redis.call('DEL', root .. ':lock', stage .. ':lock')
old[root .. ':lock'], new[stage .. ':lock'] = nil, nil
for key in pairs(old) do redis.call('RENAME', key, aside .. string.sub(key, #root + 1)) end
for key in pairs(new) do
  local name = string.sub(key, #stage + 1)
  local expires = redis.call('HGET', stage .. '.expires', name)
  redis.call('RENAME', key, root .. name)
  if expires and tonumber(expires) > 0 then
    redis.call('PEXPIREAT', root .. name, expires)
  else
    redis.call('PERSIST', root .. name)
  end
end
redis.call('DEL', stage .. '.expires')
return next(old) and 'replaced' or 'begun'
"""
