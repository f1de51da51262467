// llama.cpp through node-llama-cpp: one request a line on standard input, one answer a line on
// standard output. Knows: a model file and token ids. Does not know: text, prompts, who compares.
//
//   node node_llama.mjs PACKAGE_FOLDER MODEL.gguf THREADS CONTEXT
//   {"ids": [...], "count": N}  ->  {"ids": [...], "prefill_ms": p, "steps_ms": [...]}
//
// Greedy. Ends of text are passed over, so that N tokens come. The first token is the prefill's.
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const [folder, modelPath, threads, contextSize] = process.argv.slice(2);
const entry = pathToFileURL(`${folder}/node_modules/node-llama-cpp/dist/index.js`).href;
const {getLlama, LlamaLogLevel} = await import(entry);
const llama = await getLlama({
    gpu: false,
    build: "never",
    skipDownload: true,
    progressLogs: false,
    logLevel: LlamaLogLevel.error,
    maxThreads: Number(threads),
});
const model = await llama.loadModel({modelPath, gpuLayers: 0});
const context = await model.createContext({
    contextSize: Number(contextSize),
    threads: Number(threads),
    sequences: 1,
});
const sequence = context.getSequence();
say({
    release: llama.llamaCppRelease.release,
    system_info: llama.systemInfo,
    num_threads: context.currentThreads,
    vocab_size: model.fileInfo.metadata?.tokenizer?.ggml?.tokens?.length ?? null,
});
for await (const line of createInterface({input: process.stdin})) {
    const {ids, count} = JSON.parse(line);
    await sequence.clearHistory();
    say(await generate(ids, count));
}
process.exit(0);

async function generate(ids, count) {
    const given = sequence.evaluate(ids, {temperature: 0, yieldEogToken: true});
    const [said, times] = [[], []];
    let before = performance.now();
    while (said.length < count) {
        const {value, done} = await given.next();
        if (done) break;
        const now = performance.now();
        said.push(value);
        times.push(now - before);
        before = now;
    }
    await given.return();
    return {ids: said, prefill_ms: times[0], steps_ms: times.slice(1)};
}

function say(answer) {
    process.stdout.write(`${JSON.stringify(answer)}\n`);
}
