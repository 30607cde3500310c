-- include: common
-- What a team ran, minute by minute, as commit.lua noted it. A minute in which nothing changed has no entry: what held before it holds on.
-- ARGV: prefix, team, first minute, last minute (since the epoch, both included).
-- Answer: sandboxes at the begin of the first minute, then per minute with an entry: minute, most at once, at its end, starts.
local team, first, last = ARGV[2], num(ARGV[3]), num(ARGV[4])
local before, out = nil, {}
for hour = math.floor(first / 60), math.floor(last / 60) do
  local h = hash_of(key('tm', team, text(hour)))
  if h.first then
    if not before then before = h.first end
    for m = 0, 59 do
      local minute = hour * 60 + m
      local most, ends, starts = string.match(h[tostring(m)] or '', '^(%d+) (%d+) (%d+)$')
      if most and minute < first then
        before = ends
      elseif most and minute <= last then
        for _, n in ipairs({text(minute), most, ends, starts}) do out[#out + 1] = n end
      end
    end
  end
end
table.insert(out, 1, before or text(math.max(0, num(redis.call('HGET', key('use', team), 'sandboxes')))))
return out
