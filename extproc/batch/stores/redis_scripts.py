"""The atomic steps of the Redis store, as Lua run by the server.

Leases are compared with the server's own clock, so that workers need not agree on the time. `KEYS[1]` is
always the prefix of all keys, which carries one hash tag: all keys of one store live in one slot. Layout:

- `jobs` hash per job (`state total cursor succeeded failed record member`), `open` and `active` sorted by
  deadline with members `sequence:id`, `all` sorted by sequence;
- per job: `items` (line to `token:sunk`), `due` (leased and waiting lines by time), `leased` (set of lines),
  `ready` (returned lines in claim order), `log:LINE` (list), `results` (line to state and body), `order`
  (list);
- `files` (id to record), `file:ID` (list of pieces), `duty:NAME`.
"""

from __future__ import annotations

_PRELUDE = """
local P = KEYS[1]
local function key(...) return P .. table.concat({...}, ':') end
local function now() local t = redis.call('TIME'); return tonumber(t[1]) + tonumber(t[2]) / 1e6 end
local function holds(job, line, token)
  local item = redis.call('HGET', key('job', job, 'items'), line)
  return item and string.match(item, '^%d+') == token
    and redis.call('SISMEMBER', key('job', job, 'leased'), line) == 1
end
local function make_ready(job, line)
  local item = redis.call('HGET', key('job', job, 'items'), line)
  local rank = string.sub(item, -1) == '1' and 0 or 2^31
  redis.call('SREM', key('job', job, 'leased'), line)
  redis.call('ZREM', key('job', job, 'due'), line)
  redis.call('ZADD', key('job', job, 'ready'), rank + tonumber(line), line)
end
local function forget(job, line)
  redis.call('HDEL', key('job', job, 'items'), line)
  redis.call('SREM', key('job', job, 'leased'), line)
  redis.call('ZREM', key('job', job, 'due'), line)
  redis.call('ZREM', key('job', job, 'ready'), line)
  redis.call('DEL', key('job', job, 'log', line))
end
local function drop_open(job)
  for _, line in ipairs(redis.call('HKEYS', key('job', job, 'items'))) do forget(job, line) end
end
"""

INSERT_JOB = (
    _PRELUDE
    + """
local id, state, deadline, total = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('EXISTS', key('job', id)) == 1 then return redis.error_reply('the job id exists') end
local sequence = redis.call('INCR', key('sequence'))
local member = string.format('%012d:%s', sequence, id)
redis.call('HSET', key('job', id), 'state', state, 'total', total, 'cursor', 0, 'succeeded', 0, 'failed', 0,
  'record', ARGV[5], 'sequence', sequence, 'member', member)
redis.call('ZADD', key('all'), sequence, id)
redis.call('ZADD', key('open'), deadline, member)
return sequence
"""
)

MOVE_JOB = (
    _PRELUDE
    + """
local id, expected, state, deadline, total = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local job = key('job', id)
if redis.call('HGET', job, 'state') ~= expected then return 0 end
redis.call('HSET', job, 'state', state, 'total', total, 'record', ARGV[6])
for i = 8, #ARGV, 2 do redis.call('HSET', key('files'), ARGV[i], ARGV[i + 1]) end
local member = redis.call('HGET', job, 'member')
redis.call('ZADD', key('open'), deadline, member)
if state == 'in_progress' then redis.call('ZADD', key('active'), deadline, member)
else redis.call('ZREM', key('active'), member) end
if ARGV[7] == '1' then
  redis.call('HSET', job, 'cursor', total)
  redis.call('ZREM', key('open'), member)
  drop_open(id)
  redis.call('UNLINK', key('job', id, 'results'), key('job', id, 'order'))
end
return 1
"""
)

COUNT = (
    _PRELUDE
    + """
local job = redis.call('HMGET', key('job', ARGV[1]), 'total', 'cursor', 'succeeded', 'failed')
local function size(name) return redis.call('ZCARD', key('job', ARGV[1], name)) end
local leased = redis.call('SCARD', key('job', ARGV[1], 'leased'))
return {tonumber(job[1] or 0), tonumber(job[2] or 0), tonumber(job[3] or 0), tonumber(job[4] or 0),
  leased, size('due') - leased, size('ready')}
"""
)

CLAIM = (
    _PRELUDE
    + """
local limit, lease_s = tonumber(ARGV[1]), tonumber(ARGV[2])
local at, claimed = now(), {}
local function lease(job, line, token)
  redis.call('SADD', key('job', job, 'leased'), line)
  redis.call('ZADD', key('job', job, 'due'), at + lease_s, line)
  claimed[#claimed + 1] = {job, tonumber(line), token}
end
for _, member in ipairs(redis.call('ZRANGE', key('active'), 0, -1)) do
  if #claimed >= limit then break end
  local job = string.sub(member, 14)
  for _, line in ipairs(redis.call('ZRANGEBYSCORE', key('job', job, 'due'), '-inf', at)) do
    make_ready(job, line)
  end
  local found = redis.call('ZPOPMIN', key('job', job, 'ready'), limit - #claimed)
  for i = 1, #found, 2 do
    local token, sunk = string.match(redis.call('HGET', key('job', job, 'items'), found[i]), '^(%d+):(%d)$')
    token = tonumber(token) + 1
    redis.call('HSET', key('job', job, 'items'), found[i], string.format('%d:%s', token, sunk))
    lease(job, found[i], token)
  end
  local total, cursor = unpack(redis.call('HMGET', key('job', job), 'total', 'cursor'))
  local last = math.min(tonumber(cursor) + limit - #claimed, tonumber(total))
  for line = tonumber(cursor) + 1, last do
    redis.call('HSET', key('job', job, 'items'), line, '1:0')
    lease(job, tostring(line), 1)
  end
  if last > tonumber(cursor) then redis.call('HSET', key('job', job), 'cursor', last) end
end
return claimed
"""
)

RENEW = (
    _PRELUDE
    + """
local due, lost = now() + tonumber(ARGV[1]), {}
for i = 2, #ARGV, 3 do
  local job, line = ARGV[i], ARGV[i + 1]
  if redis.call('HGET', key('job', job), 'state') == 'in_progress' and holds(job, line, ARGV[i + 2]) then
    redis.call('ZADD', key('job', job, 'due'), due, line)
  else
    lost[#lost + 1] = (i - 2) / 3
  end
end
return lost
"""
)

APPLY = (
    _PRELUDE
    + """
local at, refused = now(), {}
for i = 1, #ARGV, 8 do
  local kind, job, line = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if not holds(job, line, ARGV[i + 3]) then
    refused[#refused + 1] = (i - 1) / 8
    kind = 'refused'
  end
  for name, amount in string.gmatch(kind == 'refused' and '' or ARGV[i + 7], '([%l_]+):(%d+)') do
    redis.call('HINCRBY', key('job', job, 'totals'), name, amount)
  end
  if kind == 'finish' then
    forget(job, line)
    redis.call('HSET', key('job', job, 'results'), line, ARGV[i + 6])
    redis.call('RPUSH', key('job', job, 'order'), line)
    redis.call('HINCRBY', key('job', job), ARGV[i + 4], 1)
  elseif kind ~= 'refused' then
    if ARGV[i + 6] ~= '' then redis.call('RPUSH', key('job', job, 'log', line), ARGV[i + 6]) end
    if kind == 'return' then
      redis.call('HSET', key('job', job, 'items'), line, ARGV[i + 3] .. ':' .. ARGV[i + 5])
      make_ready(job, line)
      local delay_s = tonumber(ARGV[i + 4])
      if delay_s > 0 then
        redis.call('ZREM', key('job', job, 'ready'), line)
        redis.call('ZADD', key('job', job, 'due'), at + delay_s, line)
      end
    end
  end
end
return refused
"""
)

DROP_OPEN = _PRELUDE + "drop_open(ARGV[1])"

TAKE_DUTY = (
    _PRELUDE
    + """
local duty = key('duty', ARGV[1])
local holder = redis.call('GET', duty)
if holder and holder ~= ARGV[2] then return 0 end
redis.call('SET', duty, ARGV[2], 'PX', ARGV[3])
return 1
"""
)

DROP_DUTY = (
    _PRELUDE
    + """
local duty = key('duty', ARGV[1])
if redis.call('GET', duty) == ARGV[2] then redis.call('DEL', duty) end
"""
)
