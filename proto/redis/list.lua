-- include: common
-- One page of a team's sandboxes in the order (start time descending, ID ascending) or its exact reverse.
-- ARGV: prefix, want_running, want_paused, ascending, after (index member or ""), started_after_ms (0 = any), limit, number of fields, their
-- names, then index tags; all must match.
-- Answer: next (member to go on after, or ""), running in total, then one array of the fields' values each.
local want = {}
if ARGV[2] == '1' then want[#want + 1] = 'running' end
if ARGV[3] == '1' then want[#want + 1] = 'paused' end
local ascending, after, since, limit = ARGV[4] == '1', ARGV[5], num(ARGV[6]), num(ARGV[7])
local fields, tags = {}, {}
for i = 9, 8 + num(ARGV[8]) do fields[#fields + 1] = ARGV[i] end
for i = 9 + #fields, #ARGV do tags[#tags + 1] = ARGV[i] end

local function smallest(view)
  local best, size
  for i, tag in ipairs(tags) do
    local n = redis.call('ZCARD', key('ix', tag, view))
    if not size or n < size then best, size = i, n end
  end
  return best
end

-- A window of the smallest index of a view, refilled as it is used up.
local function cursor_of(view)
  local base = smallest(view)
  local c = {view = view, base = key('ix', tags[base], view), others = {}, at = after, buffer = {}, next = 1, ended = false}
  for i, tag in ipairs(tags) do
    if i ~= base then c.others[#c.others + 1] = key('ix', tag, view) end
  end
  return c
end

local oldest = since > 0 and ('(' .. string.format('%013.0f', 9999999999999 - since + 1)) or '+'
local scanned = 0
local function peek(c)
  while not c.ended do
    if c.next > #c.buffer then
      if #c.buffer == 0 and c.filled then c.ended = true break end
      local got
      if ascending then
        got = redis.call('ZREVRANGEBYLEX', c.base, c.at == '' and oldest or ('(' .. c.at), '-', 'LIMIT', 0, 128)
      else
        got = redis.call('ZRANGEBYLEX', c.base, c.at == '' and '-' or ('(' .. c.at), oldest, 'LIMIT', 0, 128)
      end
      c.buffer, c.next, c.filled = got, 1, true
      scanned = scanned + #got
      if #got == 0 then c.ended = true break end
    end
    local m = c.buffer[c.next]
    local all = true
    for _, other in ipairs(c.others) do
      if not redis.call('ZSCORE', other, m) then all = false break end
    end
    c.at = m
    if all then return m end
    c.next = c.next + 1
  end
  return nil
end

local cursors, out, last, more = {}, {'', '0'}, '', false
for _, view in ipairs(want) do cursors[#cursors + 1] = cursor_of(view) end
while true do
  local best
  for _, c in ipairs(cursors) do
    local m = peek(c)
    if m and (not best or (ascending and m > best.at) or (not ascending and m < best.at)) then best = c end
  end
  if not best then break end
  if #out - 2 >= limit then more = true break end
  last = best.at
  best.next = best.next + 1
  out[#out + 1] = redis.call('HMGET', key('sb', string.sub(last, 14)), unpack(fields))
end
if more then out[1] = last end
if ARGV[2] == '1' then
  if #tags == 1 then
    out[2] = text(redis.call('ZCARD', key('ix', tags[1], 'running')))
  else
    local keys = {}
    for i, tag in ipairs(tags) do keys[i] = key('ix', tag, 'running') end
    out[2] = text(redis.call('ZINTERCARD', #keys, unpack(keys)))
  end
end
return out
