# Packs, verifies and shows; without torch, which only training needs.
#   docker build -t packer .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" packer build /data/imgs
FROM python:3.12-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE MANIFEST.in CHANGELOG.md CITATION.cff ./
COPY packer packer
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
# for --decoder jpeg4py; Debian's point releases keep the version's interface
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libturbojpeg0 \
    && rm -rf /var/lib/apt/lists/*
COPY scripts/constraints.txt /constraints.txt
RUN pip install --no-cache-dir --constraint /constraints.txt \
    click crc32c defusedxml fsspec h5py jpeg4py lmdb matplotlib msgspec numpy obstore opencv-python-headless pillow pyarrow \
    pyyaml simplejpeg tqdm werkzeug xxhash
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl && useradd --uid 1000 --no-create-home packer
# any --user can write here
ENV HOME=/tmp
USER 1000
WORKDIR /data
ENTRYPOINT ["packer"]
CMD ["--help"]
