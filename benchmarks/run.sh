#!/usr/bin/env bash
# Every figure that readme.py writes, made anew. Usage: benchmarks/run.sh [FOLDER OF PROMPTS]
set -euo pipefail
cd "$(dirname "$0")/.."
data=${1:-../shared/data/eval}
# Prompts behind the sixtieth: others have been looked at before.
fresh=$(mktemp -d)
for name in humaneval gsm8k mt_bench; do tail -n +61 "$data/$name.jsonl" >"$fresh/$name.jsonl"; done
files=("$fresh/humaneval.jsonl" "$fresh/gsm8k.jsonl" "$fresh/mt_bench.jsonl")
results=benchmarks/results
mkdir -p "$results"
flags=()
for file in "${files[@]}"; do flags+=(--prompts "$file"); done
last_line() { tail -n 1 | .venv/bin/python -m json.tool --indent 1 >"$1.part" && mv "$1.part" "$1"; }

.venv/bin/entmtp bench "${flags[@]}" --limit 60 --max-tokens 128 --out "$results/speed-int8.json"
.venv/bin/entmtp bench "${flags[@]}" --limit 60 --max-tokens 128 --runtime native --dtype bfloat16 \
    --out "$results/speed-bfloat16-native.json"
eager=(--runtime eager --dtype bfloat16)
.venv/bin/entmtp demo "${flags[@]}" "${eager[@]}" --limit 60 --max-tokens 128 \
    --methods plain,medusa-best,hydra-best --json | last_line "$results/speed-bfloat16.json"
.venv/bin/entmtp demo "${flags[@]}" "${eager[@]}" --limit 15 --max-tokens 128 --pad-rows \
    --methods plain,hydra-best --json | last_line "$results/padded-bfloat16.json"
.venv/bin/python benchmarks/identity.py --prompts "${files[@]}" --limit 60 --max-tokens 128 \
    --out "$results/identity-float32.json"
.venv/bin/python benchmarks/batch.py --max-tokens 96 --out "$results/batch-int8.json"
.venv/bin/python benchmarks/runtime_steps.py --out "$results/runtime-steps.json"
.venv/bin/python benchmarks/runtime_steps.py --competitors 1 --out "$results/runtime-steps-busy.json"
.venv/bin/python benchmarks/perplexity.py --texts "${files[@]}" --limit 120 \
    --out "$results/perplexity.json"
kinds=(--source "code=${files[0]}" --source "maths=${files[1]}" --source "chat=${files[2]}")
for heads in hydra medusa; do
    .venv/bin/python benchmarks/kinds.py --heads "$heads" "${kinds[@]}" --out "$results/kinds-$heads.json"
done
held_out="$fresh/held_out.jsonl"
.venv/bin/python training/held_out.py "$data/../train/prompts.jsonl" "$held_out"
.venv/bin/python benchmarks/remedies.py "${kinds[@]}" --calibration "$held_out" \
    --out "$results/remedies.json"
.venv/bin/python benchmarks/random_heads.py --prompts "${files[@]}" --out "$results/random-heads.json"
.venv/bin/python benchmarks/decisions.py --out "$results/decisions.json"
rm -r "$fresh"
.venv/bin/python benchmarks/readme.py
