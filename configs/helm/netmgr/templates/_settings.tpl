{{/* The mode's document for the agents, with the keys of `node` in place of its own. Arguments: .Values, document. */}}
{{- define "netmgr.nodeDocument" -}}
{{- $text := .values.nodeDocument | default .document -}}
{{- if .values.node -}}
  {{- $document := fromYaml $text -}}
  {{- if hasKey $document "Error" }}{{ fail (printf "nodeDocument is no YAML: %s" $document.Error) }}{{ end -}}
  {{- range $key, $value := .values.node }}{{ $_ := set $document $key $value }}{{ end -}}
  {{- toYaml $document -}}
{{- else -}}
  {{- $text -}}
{{- end -}}
{{- end -}}

{{/* Does to a workload's pods what values say. Arguments: object, values, image (that of components/image). */}}
{{- define "netmgr.settings" -}}
{{- $values := .values -}}
{{- $template := .object.spec.template -}}
{{- $pod := $template.spec -}}
{{- $settings := get $values (eq .object.kind "Deployment" | ternary "controller" "agent") -}}
{{- $reference := printf "%s:%s" ($values.image.repository | default .image.newName) ($values.image.tag | default .image.newTag) -}}
{{- with or $values.image.digest (and (not $values.image.tag) .image.digest) -}}
  {{- $reference = printf "%s@%s" ($values.image.repository | default $.image.newName) . -}}
{{- end -}}
{{- with $settings.tolerations }}{{ $_ := set $pod "tolerations" . }}{{ end -}}
{{- with $settings.nodeSelector }}{{ $_ := set $pod "nodeSelector" (merge (dict) . $pod.nodeSelector) }}{{ end -}}
{{- with $settings.priorityClassName }}{{ $_ := set $pod "priorityClassName" . }}{{ end -}}
{{- with $settings.podAnnotations -}}
  {{- $_ := set $template.metadata "annotations" (merge (dict) . ($template.metadata.annotations | default dict)) -}}
{{- end -}}
{{- with $settings.maxUnavailable -}}
  {{- with dig "updateStrategy" "rollingUpdate" nil $.object.spec }}{{ $_ := set . "maxUnavailable" $settings.maxUnavailable }}{{ end -}}
{{- end -}}
{{- range $values.image.pullSecrets -}}
  {{- $_ := set $pod "imagePullSecrets" (append ($pod.imagePullSecrets | default list) (dict "name" .)) -}}
{{- end -}}
{{- $name := .image.name -}}
{{- range $container := concat ($pod.initContainers | default list) $pod.containers -}}
  {{- if eq .image $name }}{{ $_ := set . "image" $reference }}{{ end -}}
  {{- with $values.image.pullPolicy }}{{ $_ := set $container "imagePullPolicy" . }}{{ end -}}
  {{- with get $values.resources .name }}{{ $_ := set $container "resources" . }}{{ end -}}
{{- end -}}
{{- end -}}
