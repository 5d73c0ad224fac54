-- Takes one request, `cost` tokens and one place, or nothing; only looks when `hold` is empty.
-- Returns seconds to wait for each limit, when to come back, the levels, and how many are held.
local rpm, tpm, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local cost, hold, lease_s = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local gap_s, max_spread_s = tonumber(ARGV[7]), tonumber(ARGV[8])
local requests, tokens = level(2, rpm), level(3, tpm)

redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now))
-- What lapses later than anything can was written before the clock was set back.
for _, late in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. text(now + lease_s), '+inf')) do
  redis.call('ZADD', KEYS[2], text(now + lease_s), late)
end
local num_held = redis.call('ZCARD', KEYS[2])

-- Redis's clock counts microseconds: who comes that much early is on time.
local function wait(want, have, limit)
  if limit == 0 then return 0 end
  if want > limit then return math.huge end
  local wait_s = (want - have) * 60 / limit
  if wait_s > 0.000002 then return wait_s end
  return 0
end

local wait_requests, wait_tokens, wait_place = wait(1, requests, rpm), wait(cost, tokens, tpm), 0
if most > 0 and num_held >= most then wait_place = gap_s end
local longest = math.max(wait_requests, wait_tokens, wait_place)
local told = longest

if hold ~= '' then
  if longest == 0 then
    if rpm > 0 then requests = requests - 1 end
    if tpm > 0 then tokens = tokens - cost end
    num_held = num_held + 1
    redis.call('ZADD', KEYS[2], text(now + lease_s), hold)
    redis.call('EXPIRE', KEYS[2], math.ceil(lease_s) + 60)
    save(requests, rpm, tokens, tpm)
  elseif longest < math.huge then
    -- Those who are refused together are told places one after another, as if they stood in line.
    local interval = wait_place
    if longest == wait_requests then interval = 60 / rpm
    elseif longest == wait_tokens then interval = 60 * cost / tpm end
    local first = now + longest
    local place = math.max(first, tonumber(saved[4] or 0) + interval)
    if place > first + max_spread_s then place = first end
    told = place - now
    save(requests, rpm, tokens, tpm)
    redis.call('HSET', KEYS[1], 'tail', text(place))
  end
end
return {text(wait_requests), text(wait_tokens), text(wait_place), text(told), text(requests), text(tokens), num_held}
