#!/bin/sh
set -e
exec vllm serve Qwen/Qwen2.5-VL-3B-Instruct \
  --max-model-len 8192 --limit-mm-per-prompt '{"image": 2, "video": 0}' \
  --port 8000 > server.log 2>&1
