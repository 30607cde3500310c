-- include: common
-- The cell's own entry. Missing = Redis is new or lost its data: the cell is `recovering` until told otherwise or until_ms has passed.
-- ARGV: prefix, op, now_ms, … ops: open cell seed_version journal recover_ms · ready · look.
-- Answer: state, epoch (Unix ms of this data's birth), journal, until_ms, created (1 when this call made it).
local meta, op, now, made = key('meta'), ARGV[2], num(ARGV[3]), 0
if op == 'open' and redis.call('EXISTS', meta) == 0 then
  redis.call('HSET', meta, 'schema', '1', 'cell', ARGV[4], 'seed_version', ARGV[5], 'journal', ARGV[6], 'epoch', text(now),
    'state', 'recovering', 'until_ms', text(now + num(ARGV[7])))
  made = 1
end
local m = redis.call('HMGET', meta, 'state', 'epoch', 'journal', 'until_ms', 'cell', 'seed_version')
if not m[1] then return {'missing', '0', '', '0', '0', '', ''} end
if op == 'journal' then
  redis.call('HSET', meta, 'journal', ARGV[4])
  m[3] = ARGV[4]
end
if m[1] == 'recovering' and (op == 'ready' or num(m[4]) <= now) then
  redis.call('HSET', meta, 'state', 'ready')
  m[1] = 'ready'
end
return {m[1], m[2], m[3], m[4], text(made), m[5], m[6]}
