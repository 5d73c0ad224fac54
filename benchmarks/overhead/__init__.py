"""What a gateway costs: CPU per streamed token and per plain request, added delay, memory.

`stub_upstream` and `baseline_proxy` are frozen: results compare across commits only while they stay.
`load` makes the traffic in a process of its own; `turn` and `rounds` say who is measured when;
`ratios` and `claims` draw the conclusions; `report` writes them down. docs/performance.md explains.
"""
