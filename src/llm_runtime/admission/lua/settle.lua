-- Ends a hold: gives back what was reserved and not used, or charges what was used beyond it, and gives back
-- `requests_back` requests. A hold that has ended or lapsed changes nothing, so this may be sent twice.
local rpm, tpm = tonumber(ARGV[1]), tonumber(ARGV[2])
local hold, reserved, used = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local requests_back = tonumber(ARGV[6])
if redis.call('ZREM', KEYS[2], hold) == 0 then return 0 end
local requests, tokens = level(2, rpm), level(3, tpm)
if rpm > 0 then requests = math.min(rpm, requests + requests_back) end
if tpm > 0 then tokens = math.min(tpm, tokens + reserved - used) end
save(requests, rpm, tokens, tpm)
return 1
