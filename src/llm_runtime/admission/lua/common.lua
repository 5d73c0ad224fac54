-- What all scripts begin with. KEYS[1]: a hash with the levels of a tenant's two buckets and when they were
-- so; KEYS[2]: a sorted set of its holds, each with the instant at which it lapses. Redis's clock is the only
-- one that all processes share; should it be set back, nothing is gained and nobody is locked out.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local saved = redis.call('HMGET', KEYS[1], 'at', 'requests', 'tokens', 'tail')
local passed = math.max(0, now - tonumber(saved[1] or now))

local function text(number)
  return string.format('%.17g', number)
end

-- A bucket holds a minute's worth and starts full. limit 0: there is no such limit.
local function level(field, limit)
  if limit == 0 then return 0 end
  return math.min(limit, tonumber(saved[field] or limit) + passed * limit / 60)
end

-- Until both buckets are full again their state says something; then it can be forgotten.
local function save(requests, rpm, tokens, tpm)
  redis.call('HSET', KEYS[1], 'at', text(now), 'requests', text(requests), 'tokens', text(tokens))
  local full = 0
  if rpm > 0 then full = math.max(full, (rpm - requests) * 60 / rpm) end
  if tpm > 0 then full = math.max(full, (tpm - tokens) * 60 / tpm) end
  redis.call('EXPIRE', KEYS[1], math.ceil(full) + 120)
end
