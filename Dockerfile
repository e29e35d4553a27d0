# mmcalib in an official image of vLLM, whose packages stay as they are: docs/how-to/deploy.md
ARG VLLM=v0.33.0
FROM vllm/vllm-openai:${VLLM}
COPY pyproject.toml README.md LICENSE THIRD_PARTY.md /opt/mmcalib/
COPY mmcalib /opt/mmcalib/mmcalib
RUN uv pip freeze --system | grep == > /opt/mmcalib/constraints.txt \
    && uv pip install --system --break-system-packages --constraint /opt/mmcalib/constraints.txt '/opt/mmcalib[report]'
ENTRYPOINT ["mmcalib"]
