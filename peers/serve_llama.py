"""llama.cpp's own HTTP server on one GGUF file, inside this process, until it is told to stop.

Runs in an environment that holds `xllamacpp` and nothing of ours. Settings are the server's
defaults, but for what two CPU cores need: as many threads as cores, and two lanes in one cache.
"""

import argparse
import signal
import threading

import xllamacpp

LANES = 2


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gguf")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alias", default="smollm2")
    chosen = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    params = xllamacpp.CommonParams()
    params.model.path = chosen.gguf
    params.model_alias = {chosen.alias}
    params.hostnames = ["127.0.0.1"]
    params.port = chosen.port
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = chosen.threads
    params.n_parallel = LANES
    params.kv_unified = True  # one cache for both lanes, as llama-server has it by default
    server = xllamacpp.Server(params)
    print(f"serving on {server.listening_address}", flush=True)
    stop.wait()


if __name__ == "__main__":
    main()
