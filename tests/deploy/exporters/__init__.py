"""Programs that speak the Prometheus text of vLLM and of NVIDIA's DCGM exporter, with their real names."""
