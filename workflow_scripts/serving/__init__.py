"""The model server for diffusers pipelines, and the client side that starts, shares and watches it.

Client side, free of torch: `spec` (what a server serves, which weights, how much memory), `launcher` (one server per
model and device slot, started on first need), `client` (the images API over a Unix socket or HTTP, with typed
failures). Server side: `server` (HTTP), `batcher` (queue, fairness, batch sizes), `pipelines` (the diffusers
families).
"""
