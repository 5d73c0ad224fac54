"""Whether vLLM takes a command line: run by vLLM's own Python, with the arguments after `vllm serve`."""

import json
import sys

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
names = ("model_tag", "max_num_seqs", "max_model_len", "dtype", "port", "gpu_memory_utilization")
sys.stdout.write(json.dumps({name: getattr(parsed, name) for name in names}) + "\n")
